"""The support desk at size: a seeding command, and what its pages cost the database then."""
