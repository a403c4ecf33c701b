"""What each route takes and answers, as an OpenAPI document and a page."""
