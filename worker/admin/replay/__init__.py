"""`pcaplake replay`: announces objects of a bucket to the queue again."""
