"""The broker among others: registration, routes, name servers, master and slaves."""
