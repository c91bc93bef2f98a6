"""What joins formats to storage: reading, committing, branches, sessions, repositories."""
