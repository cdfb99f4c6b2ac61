"""What the product costs beside the least that could do the same work. Run by `make bench`; read README.md."""
