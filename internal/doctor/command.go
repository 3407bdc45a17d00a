package doctor

import (
	"context"
	"encoding/json"
	"io"
)

// Run examines this host, prints what it found, for people or as JSON, and returns
// [Report.Err].
func Run(ctx context.Context, w io.Writer, asJSON bool) error {
	report := Examine(ctx)
	if err := show(w, report, asJSON); err != nil {
		return err
	}
	return report.Err()
}

func show(w io.Writer, report Report, asJSON bool) error {
	if !asJSON {
		return report.Write(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
