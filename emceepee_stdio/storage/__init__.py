"""Files of ours on disk: private ones, and locks between processes."""
