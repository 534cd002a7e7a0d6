"""Commands of `bayplan`, grouped by subject; each module defines one command and is imported when the command runs."""
