from tests.support.savepoint_fixtures import local, location, repository, stores, stuck

__all__ = ["local", "location", "repository", "stores", "stuck"]
