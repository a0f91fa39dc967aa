"""What differs and the line that mends it: findings, errors and ports, each with its edit."""
