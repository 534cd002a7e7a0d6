"""What must hold, one module for each concern. Checkers hear every change of the record and are asked in calm times."""
