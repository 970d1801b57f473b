"""Cold requests for single messages: query, recall, numbered writes."""
