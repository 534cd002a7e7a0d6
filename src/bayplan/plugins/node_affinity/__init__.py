"""Plugin NodeAffinity."""
