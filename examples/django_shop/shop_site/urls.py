"""Addresses of the shop."""

from django.contrib import admin
from django.urls import include, path
from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("fairlead/", include("fairlead.contrib.django.urls")),
    path("orders/", views.place_order, name="place_order"),
    path("orders/<int:order_id>/", views.show_order, name="show_order"),
    path("orders-async/", views.place_order_async, name="place_order_async"),
]
