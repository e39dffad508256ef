"""Settings of the shop. SHOP_DATABASE: the path of a SQLite file, or the URL of a PostgreSQL
database."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import django

HERE = Path(__file__).parents[1]
DATABASE = os.environ.get("SHOP_DATABASE", str(HERE / "shop.sqlite3"))

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example, never in production")
DEBUG = bool(os.environ.get("SHOP_DEBUG"))
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "shop_site.urls"
WSGI_APPLICATION = "shop_site.wsgi.application"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "fairlead.contrib.django",
    "shop",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if DATABASE.startswith("postgresql://"):
    parts = urlsplit(DATABASE)
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path[1:]),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(parts.port or ""),
            "CONN_MAX_AGE": 600,
            "CONN_HEALTH_CHECKS": True,
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATABASE,
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
            "TEST": {"NAME": f"{DATABASE}.test"},
        }
    }

TASKS = {
    "default": {
        "BACKEND": "fairlead.contrib.django.backend.FairleadBackend",
        "QUEUES": ["default", "mail"],
    }
}
