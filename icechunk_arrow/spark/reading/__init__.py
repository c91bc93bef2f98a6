"""Arrays and commits as frames: plans of what tasks read, made on the driver, and the tasks."""
