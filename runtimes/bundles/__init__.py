"""What a bundle is and may hold: pure rules over bytes. `runtimes/bundle.py` is the way in."""
