"""Measurements with MLPerf LoadGen, which issues the queries and takes the times."""
