"""The seam through which every block goes to a reader."""
