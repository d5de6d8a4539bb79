"""Files of ours on disk: private files, and locks between processes."""
