package base

import (
	"os"
	"strings"
)

// Tail is the last lines of a file, indented, for an error message.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "    (no log: " + err.Error() + ")\n"
	}
	if len(data) > 1<<16 {
		data = data[len(data)-1<<16:]
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "    " + strings.Join(all, "\n    ") + "\n"
}

// FirstLine is the first line of a tool's output, for an error message.
func FirstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
