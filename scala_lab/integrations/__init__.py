"""Other people's training loops: scala_lab's methods and measurements inside of them."""
