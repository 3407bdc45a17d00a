package hostenv

import "slices"

// Seeing is a view that has a directory of the host, too.
func (v View) Seeing(dir string) View {
	v.sees = append(slices.Clone(v.sees), dir)
	return v
}
