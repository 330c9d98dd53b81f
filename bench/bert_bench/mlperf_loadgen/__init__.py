"""MLPerf LoadGen as the source of load: its scenarios and its own clock."""
