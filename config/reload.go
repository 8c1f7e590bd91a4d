package config

import "reflect"

// RestartKeys returns the keys that differ between two configurations and take
// effect only at the next start, in the order of Config: those whose fields say
// so. Everything else that differs may be put to use at once.
func RestartKeys(from, to *Config) []string {
	return changed(reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem(), "", nil)
}

func changed(from, to reflect.Value, path string, keys []string) []string {
	for f, field := range from.Fields() {
		if !f.IsExported() {
			continue
		}
		key, other := keyPath(path, f.Tag.Get("yaml")), to.FieldByIndex(f.Index)
		switch {
		case isSection(f.Type):
			keys = changed(field, other, key, keys)
		case f.Tag.Get("restart") != "" && !reflect.DeepEqual(field.Interface(), other.Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}
