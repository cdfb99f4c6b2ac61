"""From a folder to the zip that is deployed: everything that needs the developer's own tools happens here."""
