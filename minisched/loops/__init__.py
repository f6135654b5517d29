"""The published loops: the order of receive, schedule, launch and process."""
