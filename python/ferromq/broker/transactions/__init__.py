"""Half messages: how transactions end, and the check-back of those that stay open."""
