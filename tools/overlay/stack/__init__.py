"""The series as a stack of pull requests: ghstack and lintrunner, and what they need to go well."""
