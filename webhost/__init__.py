"""The project: settings, routes, and the small kernel that all apps share."""
