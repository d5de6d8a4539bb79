"""`emceepee doctor`: what is checked, what is found, and the report on it."""
