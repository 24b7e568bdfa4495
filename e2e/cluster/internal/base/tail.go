package base

import (
	"os"
	"slices"
	"strings"
)

// Tail is the last lines of a file, indented, for an error message. The log of a
// Go program that crashed ends with the stacks of its goroutines; of it, Tail is
// the first lines of the crash, which tell the cause.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "    (no log: " + err.Error() + ")\n"
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	first := max(0, len(all)-lines)
	if crash := slices.IndexFunc(all, beginsCrash); crash >= 0 && crash < first {
		first = crash
	}
	return "    " + strings.Join(all[first:min(len(all), first+lines)], "\n    ") + "\n"
}

// beginsCrash tells whether the Go runtime starts to report a crash in a line.
func beginsCrash(line string) bool {
	for _, cause := range []string{"panic: ", "fatal error: ", "SIG"} {
		if strings.HasPrefix(line, cause) {
			return true
		}
	}
	return false
}

// FirstLine is the first line of a tool's output, for an error message.
func FirstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
