package doctor

import (
	"context"
	"encoding/json"
	"io"
)

// Run examines this host for workers with their data below a directory, prints what it found, for
// people or as JSON, and returns [Report.Err].
func Run(ctx context.Context, data string, w io.Writer, asJSON bool) error {
	report := Examine(ctx, data)
	if ctx.Err() != nil { // what was not tried is not missing
		return ctx.Err()
	}
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
