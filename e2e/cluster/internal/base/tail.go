package base

import (
	"os"
	"strings"
)

// Tail is the last lines of a file, indented, for an error message. The log of a
// Go program that crashed ends with the stacks of its goroutines; of it, Tail is
// the first lines of the last crash, which tell the cause.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "    (no log: " + err.Error() + ")\n"
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	first := max(0, len(all)-lines)
	for i := first - 1; i >= 0; i-- {
		if beginsCrash(all[i]) {
			first = i
			break
		}
	}
	return "    " + strings.Join(all[first:min(len(all), first+lines)], "\n    ") + "\n"
}

// beginsCrash tells whether the Go runtime starts to report a crash in a line.
func beginsCrash(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") ||
		strings.HasPrefix(line, "SIG") && strings.Contains(line, ": ")
}

// FirstLine is the first line of a tool's output, for an error message.
func FirstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
