package terminal

// marks are what stands before and between what the view shows.
type marks struct {
	user, model, thought, call, queued, running string
	bar                                         string // before what a tool returned
	separator, minus, cut                       string
	ok, failed, stopped, unknown                string
	alert                                       string // before what nobody should overlook
}

// drawn are marks for eyes.
func drawn() *marks {
	return &marks{
		user: "› ", model: "● ", thought: "○ ", call: "› ", queued: "· ", running: "▸ ", bar: "│ ", separator: " · ", minus: "−", cut: "…",
		ok: "✓ ", failed: "✗ ", stopped: "■ ", unknown: "? ", alert: "!",
	}
}

// spoken are marks for ears: a screen reader says nothing that means nothing.
func spoken() *marks {
	return &marks{
		user: "You: ", model: "Model: ", thought: "Model thinks: ", call: "calls: ", bar: "  ", separator: ", ", minus: "-", cut: "...", alert: "Warning:",
	}
}
