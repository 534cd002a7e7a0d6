"""Plugin InterPodAffinity."""
