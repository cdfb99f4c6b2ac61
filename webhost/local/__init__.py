"""Everything a laptop needs in place of the clouds; never imported in production."""
