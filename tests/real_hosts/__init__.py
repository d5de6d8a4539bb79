"""Real hosts from npm with emceepee in them, driven by a model that says what a test wrote."""
