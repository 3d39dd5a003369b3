"""Between graphs, trainers and run directories."""
