"""What the Spark jobs share: session, options, progress, reports, access to a lake's tables."""
