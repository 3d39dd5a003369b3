"""Engines that run the points of a sweep: this machine, Ray and Slurm."""
