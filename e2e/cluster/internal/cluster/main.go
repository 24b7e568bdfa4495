package cluster

// Main is a stub until the full mode is written.
func Main(args []string) int { return 2 }
