"""Cold requests about messages: query, recall, layouts of numbered writes."""
