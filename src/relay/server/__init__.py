"""The HTTP API: `relay.server.app.build_app` makes the application, `relay.server.serve` the process around it."""
