package config

import "reflect"

// RestartKeys returns the keys that differ between two configurations and take
// effect only at the next start, in the order of Config: those whose fields say
// so. Everything else that differs may be put to use at once.
func RestartKeys(old, new *Config) []string {
	return changed(reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem(), "", nil)
}

func changed(old, new reflect.Value, path string, keys []string) []string {
	for f, field := range old.Fields() {
		if !f.IsExported() {
			continue
		}
		key, other := keyPath(path, f.Tag.Get("yaml")), new.FieldByIndex(f.Index)
		switch {
		case isSection(f.Type):
			keys = changed(field, other, key, keys)
		case f.Tag.Get("restart") != "" && !reflect.DeepEqual(field.Interface(), other.Interface()):
			keys = append(keys, key)
		}
	}
	return keys
}
