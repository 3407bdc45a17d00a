package snapshot

// budget is what is left of the limits of one tree; nil is without limits.
type budget struct {
	limits  Limits
	entries int
	bytes   int64
	names   int
}

// entry takes an entry with its name and target from the budget.
func (b *budget) entry(name, target string) error {
	if b == nil {
		return nil
	}
	b.entries++
	b.names += len(name) + len(target)
	switch {
	case b.entries > b.limits.MaxEntries:
		return limitf(name, "more than %d entries", b.limits.MaxEntries)
	case len(name) > MaxPath || len(target) > MaxPath:
		return limitf(name, "a path has more than %d bytes", MaxPath)
	case b.names > MaxNames:
		return limitf(name, "the names have more than %d bytes together", MaxNames)
	default:
		return nil
	}
}

// content takes the size of a file from the budget.
func (b *budget) content(name string, size int64) error {
	if b == nil {
		return nil
	}
	if size > b.limits.MaxBytes-b.bytes {
		return limitf(name, "the files have more than %d bytes together", b.limits.MaxBytes)
	}
	b.bytes += size
	return nil
}
