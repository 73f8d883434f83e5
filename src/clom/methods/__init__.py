"""The systems of the paper, one file each, all behind `Method`."""
