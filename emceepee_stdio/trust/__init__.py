"""Trust: what a model may start or call, and what a person has approved.

Owns the rules, the files in which agreements are remembered, and the words in which a person is
asked. Nothing here starts, connects or asks; the session does, by these rules.
"""
