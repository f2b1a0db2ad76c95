"""What any process needs: settings, logging, HTTP in and out, images, vectors."""
