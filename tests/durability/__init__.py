"""What survives a power cut: system calls are traced, and the disk after each of them is worked out."""
