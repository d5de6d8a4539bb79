"""Trust: what a model may start or call, and what a person has approved.

Owns the files in which agreements are remembered, the words in which a person is asked, and the
page on which they answer. Nothing here starts or connects; the session does, by what stands here.
"""
