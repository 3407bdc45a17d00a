package terminal

import (
	"os"

	"golang.org/x/term"
)

// ColorWanted reports whether what is written to f should be in colours. The
// environment decides first: NO_COLOR against, then FORCE_COLOR and
// CLICOLOR_FORCE for (or against, when FORCE_COLOR is "0" or "false"), then
// CLICOLOR=0 and TERM=dumb against; otherwise f decides, by being a terminal. An
// empty variable counts as unset. getenv is os.Getenv or alike; f may be nil.
func ColorWanted(f *os.File, getenv func(string) string) bool {
	off := func(name string) bool { value := getenv(name); return value == "0" || value == "false" }
	switch {
	case getenv("NO_COLOR") != "", off("FORCE_COLOR"):
		return false
	case getenv("FORCE_COLOR") != "":
		return true
	case getenv("CLICOLOR_FORCE") != "" && !off("CLICOLOR_FORCE"):
		return true
	case off("CLICOLOR"), getenv("TERM") == "dumb":
		return false
	default:
		return f != nil && term.IsTerminal(descriptor(f))
	}
}

// Width returns how many columns f has; 0 when it is no terminal, or does not say.
func Width(f *os.File) int {
	columns, _ := Size(f)
	return columns
}

// Size returns how many columns and rows f has; 0 when it is no terminal, or does not say.
func Size(f *os.File) (columns, rows int) {
	if f == nil {
		return 0, 0
	}
	columns, rows, err := term.GetSize(descriptor(f))
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

func descriptor(f *os.File) int { return int(f.Fd()) }

// marks are the symbols before and between entries of the view.
type marks struct {
	user, model, thought, call, queued, running string
	bar                                         string // before what a tool returned
	separator, minus, cut                       string
	alert                                       string // before an alert
	endMarks
}

// endMarks are the marks of calls and turns that have ended.
type endMarks struct{ ok, failed, stopped, unknown string }

// drawn are marks for eyes.
func drawn() *marks {
	return &marks{
		user: "› ", model: "● ", thought: "○ ", call: "› ", queued: "· ", running: "▸ ", bar: "│ ", separator: " · ", minus: "−", cut: "…",
		alert: "!", endMarks: endMarks{ok: "✓ ", failed: "✗ ", stopped: "■ ", unknown: "? "},
	}
}

// spoken are marks for ears: a screen reader says nothing that means nothing.
func spoken() *marks {
	return &marks{
		user: "You: ", model: "Model: ", thought: "Model thinks: ", call: "calls: ", bar: "  ", separator: ", ", minus: "-", cut: "...", alert: "Warning:",
	}
}
